// Keeps a read model's table with the packages of Durable Streams; prints it once it has the row `end`.
import { stream } from "@durable-streams/client"
import { MaterializedState } from "@durable-streams/state"

const [url, live, token] = process.argv.slice(2)
const state = new MaterializedState()
const found = await stream({ url, offset: "-1", live, headers: { Authorization: `Bearer ${token}` } })
found.subscribeJson((batch) => {
  for (const each of batch.items) {
    if (each.headers.control === "reset") state.clear()
    else state.apply(each)
  }
  console.error(batch.offset)
  const rows = state.getType("by_day")
  if (rows.has("end")) {
    console.log(JSON.stringify(Object.fromEntries(rows)))
    process.exit(0)
  }
})
