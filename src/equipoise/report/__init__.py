"""What run folders say, as tables and as a page. Reads records only."""
