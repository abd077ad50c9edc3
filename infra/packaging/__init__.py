"""What goes into the deployed artefacts: the Lambda bundle, the image of a segment store, the archive for Spark."""
