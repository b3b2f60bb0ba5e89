"""Find out whether a numeric loss helps: tasks, runs, statistics, a report. The library never imports the lab."""
