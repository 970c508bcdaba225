"""What losses, trainers and ranks on torch share. Import its parts by name: most of them need torch."""
