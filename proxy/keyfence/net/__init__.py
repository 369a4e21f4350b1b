"""Network addresses, and the PROXY protocol header in which a load balancer names its client."""
