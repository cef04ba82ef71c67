"""What training holds, each kind as a tree that can be read, compared and put back."""
