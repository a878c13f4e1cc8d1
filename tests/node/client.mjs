// A client of a tube in Redis, in another language: put, take, ack. It keeps to docs/reference/redis.md.
//
// Payloads are what JSON can carry, or Buffers. It knows the built-in types, and no temporary tubes.
// One consumer per client: a take that waits uses the second connection. It rescues nobody; the Python processes do.

import { createHash, randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { createClient, RESP_TYPES } from 'redis'

const QUEUE_KEYS = ['tubes', 'sessions', 'connections', 'roll', 'last']
const TUBE_KEYS = [
  'meta', 'tasks', 'states', 'held', 'sessions', 'waiting', 'bell', 'ready', 'line', 'busy', 'buried', 'due',
  'calls', 'seeking', 'room', 'never',
]
const FEATURES = { fifo: '', fifottl: 'tp', limfifottl: 'tpb', utube: 'g', utubettl: 'tpg' }
const NEEDS = { ttl: 't', ttr: 't', delay: 't', pri: 'p', utube: 'g' } // the feature for each option of a put
const BYTES = { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } }
const BEATS = 3 // in the time after which others take us for dead
const FLOORS = 4 // for so many, others believe that we wait, once we have said so
const MOST_SETTLED = 1000
const SHORTEST = 0.01 // seconds of a BLPOP: for Redis 6.2, less than a millisecond means for ever

export class Client {
  #redis
  #blocked // the connection that waits in BLPOP
  #folder
  #scripts = new Map()
  #queueKeys
  #tubeKeys
  #features
  #options
  #name = randomUUID()
  #floor
  #connection
  #beatEvery
  #beating
  #mayHoldMore = false // a take had no answer
  #offset = 0 // of the server's clock, in ms
  #calls = {}

  // scripts: the folder with the .lua files of the Python package. floor: seconds between two looks of a consumer
  // that waits and is not called.
  static async open(url, tube, { scripts, namespace = 'tubes', deadAfter = 15, floor = 0.5 }) {
    const client = new Client()
    client.#folder = scripts
    client.#floor = floor
    client.#beatEvery = Math.floor((deadAfter * 1000) / BEATS) // ms
    client.#redis = await connect(url)
    client.#blocked = await connect(url)
    client.#queueKeys = QUEUE_KEYS.map((key) => `{${namespace}}:${key}`)
    await client.#findTube(namespace, tube)
    await client.#learnTime()
    await client.#beginSession()
    client.#beating = setInterval(() => client.#beat().catch(() => {}), client.#beatEvery)
    return client
  }

  // Times are whole ms.
  async put(data, options = {}) {
    for (const [option, feature] of Object.entries(NEEDS)) {
      const given = options[option] ?? null
      if (given !== null && !this.#features.includes(feature)) throw new Error(`the tube has no ${option}`)
      const canBe = option === 'utube' ? isName(given) : Number.isSafeInteger(given) && given >= 0
      if (given !== null && !canBe) throw new Error(`${option} cannot be ${given}`)
    }
    const { pri, ttl, ttr, delay = 0, utube = null } = options
    const isBytes = Buffer.isBuffer(data)
    const payload = isBytes ? data : JSON.stringify(data)
    if (payload === undefined) throw new Error(`JSON cannot carry ${String(data)}`)
    const now = this.#now()
    const tube = this.#options
    const timeToLive = ttl ?? tube.ttl_ms ?? null
    const lasts = timeToLive === null ? '-' : timeToLive + delay
    const due = delay ? now + delay : lasts === '-' ? '-' : now + lasts
    const record = [
      delay ? '~' : 'r', pri ?? tube.pri ?? 0, now, now, due, lasts, ttr ?? tube.ttr_ms ?? tube.ttl_ms ?? '-', 0, '-',
      isBytes ? 'b' : 'j', storedName(utube),
    ].join(' ')
    const put = () => this.#onTube('put', now, tube.capacity ?? 0, record, payload)
    let last = await put()
    if (last === 0) {
      await this.#settle()
      last = await put()
    }
    if (last === 0) throw new Error('the tube is full')
    this.#count('put')
    return last
  }

  // The next task, or null when none came in so many seconds.
  async take(timeout = 0) {
    const end = performance.now() + timeout * 1000
    let hasSaid = false
    try {
      for (;;) {
        const task = await this.#takeNow()
        const left = (end - performance.now()) / 1000
        if (task || left <= 0) return task
        const mayFind = await this.#onTube('wait', 0, this.#name, this.#floor * FLOORS * 1000, 't')
        hasSaid = true
        const patience = String(Math.max(Math.min(left, this.#floor), SHORTEST))
        if (!mayFind) await this.#blocked.sendCommand(['BLPOP', this.#key('bell'), patience])
      }
    } finally {
      // If this fails, we are not believed for long; and a task that has come must be returned
      if (hasSaid) await this.#onTube('unwait', 0, this.#name, 't', 0).catch(() => {})
    }
  }

  // Whether it was still ours.
  async ack(task) {
    const changes = await this.#onTube('ack', this.#now(), this.session, task.id, task.token, 0)
    this.#countAll(changes)
    return changes.length > 0
  }

  async close() {
    clearInterval(this.#beating)
    await this.#storeCalls()
    await this.#onQueue('leave', this.#connection, this.#now())
    this.#blocked.destroy()
    await this.#redis.close()
  }

  // What is over takes up room until somebody settles it.
  async #settle() {
    for (;;) {
      const changes = await this.#onTube('expire', this.#now(), MOST_SETTLED)
      this.#countAll(changes)
      if (changes.length < MOST_SETTLED) return
    }
  }

  // Taking

  async #takeNow() {
    if (this.#mayHoldMore) await this.#beginAnew()
    for (;;) {
      const changes = await this.#takeOrBeAdmitted()
      this.#countAll(changes)
      for (let at = 0; at < changes.length; at += 4) {
        if (changes[at] === 'take') return asTask(changes.slice(at, at + 4))
      }
      if (!changes.length) return null // otherwise it has settled what was due, and may find more
    }
  }

  async #takeOrBeAdmitted() {
    for (;;) {
      try {
        const given = [this.#features, this.#now(), 0, this.session, 1, MOST_SETTLED]
        const changes = await this.#run('take', this.#tubeKeys, given, BYTES)
        return changes.map((part, at) => (at % 4 === 3 ? part : part.toString()))
      } catch (error) {
        if (!error.message.includes('NOSESSION')) {
          this.#mayHoldMore = true
          throw error
        }
        await this.#admit()
      }
    }
  }

  async #admit() {
    if (!(await this.#isAlive())) await this.#beginSession()
    const session = this.session
    await this.#onTube('admit', 0, session)
    if (session !== this.session || !(await this.#isAlive())) {
      await this.#giveBack(session) // it ended meanwhile, and nobody else may look here again
    }
  }

  // Nobody was told what a take without an answer has taken: all that we hold goes back.
  async #beginAnew() {
    const session = this.session
    await this.#onQueue('leave', this.#connection, this.#now())
    await this.#beginSession()
    await this.#giveBack(session)
    this.#mayHoldMore = false
  }

  async #giveBack(session) {
    for (;;) {
      const changes = await this.#onTube('release_owner', this.#now(), session, MOST_SETTLED)
      this.#countAll(changes)
      if (changes.length < MOST_SETTLED) return
    }
  }

  // Sessions

  async #beginSession() {
    this.session = randomUUID().replaceAll('-', '')
    this.#connection = randomUUID().replaceAll('-', '')
    await this.#onQueue('begin_session', this.#connection, this.session, 0, `${hostname()}/${process.pid} node`)
    await this.#onQueue('call_roll', this.#connection, this.#beatEvery, BEATS) // Python rescues those it names
  }

  async #isAlive() {
    return (await this.#onQueue('is_alive', this.#connection, this.session)) === 1
  }

  async #beat() {
    if ((await this.#onQueue('beat', this.#connection)) === 0) await this.#beginSession() // what we held is others'
    await this.#learnTime()
    await this.#storeCalls()
  }

  // What the statistics show

  #count(event) {
    this.#calls[event] = (this.#calls[event] ?? 0) + 1
  }

  #countAll(changes) {
    for (let at = 0; at < changes.length; at += 4) this.#count(changes[at])
  }

  async #storeCalls() {
    const calls = Object.entries(this.#calls).flat()
    this.#calls = {}
    if (calls.length) await this.#onTube('add_calls', 0, ...calls)
  }

  // The server

  async #findTube(namespace, tube) {
    const entries = await this.#onQueue('tubes')
    const at = entries.findIndex((name, place) => place % 2 === 0 && name === tube)
    if (at < 0) throw new Error(`there is no tube ${tube}`)
    const { id, type, options, temporary } = JSON.parse(entries[at + 1])
    if (temporary || !(type in FEATURES)) {
      throw new Error(`tube ${tube} is a ${temporary ? 'temporary ' : ''}${type}, which is unknown here`)
    }
    this.#tubeKeys = TUBE_KEYS.map((key) => `{${namespace}:${id}}:${key}`)
    this.#features = FEATURES[type]
    this.#options = options
    await this.#onTube('open', 0, JSON.parse(entries[at + 1]).after)
  }

  async #learnTime() {
    const [seconds, micros] = await this.#redis.sendCommand(['TIME'])
    this.#offset = Number(seconds) * 1000 + Number(micros) / 1000 - performance.now()
  }

  #now() {
    return Math.ceil(performance.now() + this.#offset)
  }

  #key(name) {
    return this.#tubeKeys[TUBE_KEYS.indexOf(name)]
  }

  #onQueue(script, ...given) {
    return this.#run(script, this.#queueKeys, given)
  }

  #onTube(script, now, ...given) {
    return this.#run(script, this.#tubeKeys, [this.#features, now, 0, ...given])
  }

  async #run(name, keys, given, how = {}) {
    const { text, sha } = this.#script(name)
    const words = [keys.length, ...keys, ...given].map((word) => (Buffer.isBuffer(word) ? word : String(word)))
    try {
      return await this.#redis.sendCommand(['EVALSHA', sha, ...words], how)
    } catch (error) {
      if (!error.message.startsWith('NOSCRIPT')) throw error
      return await this.#redis.sendCommand(['EVAL', text, ...words], how)
    }
  }

  #script(name) {
    if (!this.#scripts.has(name)) {
      const read = (file) => readFileSync(join(this.#folder, `${file}.lua`), 'utf8')
      const text = read(name).replace(/^-- include (\w+)$/gm, (_, included) => read(included))
      this.#scripts.set(name, { text, sha: createHash('sha1').update(text).digest('hex') })
    }
    return this.#scripts.get(name)
  }
}

function asTask([, id, record, payload]) {
  const [state, pri, created, updated, due, ttl, ttr, attempts, owner, kind, ...utube] = record.split(' ')
  return { id, token: attempts, data: dataOf(kind, payload), utube: nameOf(utube.join(' ')) }
}

// What should be JSON and is not counts as bytes, as in Python: an error would leave the task taken, with nobody told.
function dataOf(kind, payload) {
  try {
    return kind === 'j' ? JSON.parse(payload) : payload
  } catch {
    return payload
  }
}

function isName(utube) {
  return typeof utube === 'string' && !utube.includes('\0')
}

// The unnamed sub-queue is stored as '', so the name '' gets a mark in front, and a name that begins with one, another.
function storedName(utube) {
  if (utube === null) return ''
  return utube === '' || utube.startsWith('\u0001') ? `\u0001${utube}` : utube
}

function nameOf(stored) {
  if (stored === '') return null
  return stored.startsWith('\u0001') ? stored.slice(1) : stored
}

async function connect(url) {
  const { protocol, pathname, searchParams } = new URL(url)
  const options =
    protocol === 'unix:'
      ? { socket: { path: pathname }, database: Number(searchParams.get('db') ?? 0) }
      : { url: url.split('?')[0] }
  return await createClient(options).on('error', () => {}).connect()
}
