"""Object stores: S3, Google Cloud Storage and Azure, as places for files."""
