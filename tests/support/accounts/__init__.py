"""What tests of other accounts of this machine share: a program under one, and what it gets of a running Millrace."""
