// Package faults tries what legwork promises while the parts around it fail: worker processes that are killed, stopped and
// restarted, a Postgres and a Redis that go away or fall silent, servers that hang. It takes minutes, so its tests run only
// where LEGWORK_FAULTS is 1, as in make faults.
package faults
