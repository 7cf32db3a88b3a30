"""What will be asked, decided before anything is sent; pure."""
