"""What every role of a job is built on: its layout, the loop of a role, the watchdog, and how processes end."""
