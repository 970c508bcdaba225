"""The host's side of the connection to a resident: requests and answers, commands, shells; and owners of folders."""
