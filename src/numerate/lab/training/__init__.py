"""Examples and an objective become one finished run, alone or in a stack."""
