"""Who a client is: from what it shows to the service that the policy names."""
