"""Linear Road: an oracle that is plain enough to be believed, and traffic to try the application on."""
