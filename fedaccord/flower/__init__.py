"""The real federation over Flower; no other folder imports flwr.

wire          what travels: orders and updates as Flower's records
server        the server's end: an engine over Flower's grid
node          a client's end: its data, its limits, what it keeps on its own disk
apps          both ends as Flower apps, for the stock flower-superlink, flower-supernode and flwr run
local         all of a federation on one machine, for a first try
superlink     the SuperLink on that machine: its command line, its database
certificates  keys and certificates: made, renewed
expiry        when certificates expire, and a warning ahead of it
adapter       every part of Flower that is not public
"""
