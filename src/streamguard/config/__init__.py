"""What an operator sets: the policy file and the process settings."""
