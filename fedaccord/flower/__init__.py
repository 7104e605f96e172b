"""A real federation over Flower; no other folder imports flwr.

wire          orders and updates as Flower's records, all that travels between the two ends
server        the server's end: an engine over Flower's grid
node          a client's end: its data, its limits, and what it keeps on its own disk
limits        bounds on what a server may send to a client or ask of it
apps          both ends as Flower apps, for the stock flower-superlink, flower-supernode and flwr run
local         a whole federation on one machine, for a first try
superlink     the SuperLink on that machine: its command line and its database
certificates  making and renewing keys and certificates
expiry        when certificates expire, and warnings ahead of it
adapter       every use of a part of Flower that is not public
"""
