"""What the commands import: what several of them share, or what would bury the job of one."""
