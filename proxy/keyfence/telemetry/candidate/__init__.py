"""What a candidate policy would change, counted apart from the findings of the policy in force."""
