"""One server side HTTP/2 connection as a pure state machine: bytes in, calls and bytes out.

`connection` receives, `sender` sends, `stream` knows which streams are open. Nothing here knows a
socket, a clock or a thread.
"""
