"""The di-h20 image: step scripts run through the Docker SDK, one layer each."""
