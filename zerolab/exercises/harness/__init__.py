"""What runs and judges exercises; the exercises themselves lie one folder up, one a file."""
