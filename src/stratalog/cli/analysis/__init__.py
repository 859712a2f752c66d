"""Commands that look into logs and get data out of them."""
