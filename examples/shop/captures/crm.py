"""The customer database of the example shop: an ordinary table; the program that updates it knows no events."""

from millrace import Capture
from millrace.capture import CapturedTable
from millrace.examples.shop.customers import crm_dsn

CRM = Capture(name="crm", source=crm_dsn, tables=(CapturedTable("customers"),))
