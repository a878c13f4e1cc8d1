// Does what a test tells it: one JSON array a line, ["put", data, options] or ["take", seconds] or ["ack"] or
// ["work", seconds]; answers each with a line of JSON.

import { createInterface } from 'node:readline'
import { Client } from './client.mjs'

const [url, tube, scripts, deadAfter, floor] = process.argv.slice(2)
const client = await Client.open(url, tube, { scripts, deadAfter: Number(deadAfter), floor: Number(floor) })
let task = null

const verbs = {
  put: (data, options) => client.put(data, options),
  'put bytes': (data) => client.put(Buffer.from(data)),
  'put nothing': () => client.put(undefined),
  take: async (timeout) => {
    task = await client.take(timeout)
    return task
  },
  ack: () => client.ack(task),
  session: () => client.session,

  // Take and ack until a task says stop, or nothing has come for so many seconds; return what came.
  work: async (patience) => {
    const done = []
    while ((task = await client.take(patience)) !== null) {
      if (!(await client.ack(task))) continue
      if (task.data === 'stop') break
      done.push(task.data)
    }
    return done
  },
}

console.log(JSON.stringify('ready'))
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...given] = JSON.parse(line)
  try {
    console.log(JSON.stringify(await verbs[verb](...given)))
  } catch (error) {
    console.log(JSON.stringify({ error: error.message }))
  }
}
await client.close()
