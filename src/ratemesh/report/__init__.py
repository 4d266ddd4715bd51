"""What people look at; reads run folders only."""
