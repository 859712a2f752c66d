// kafkajs at a broker: one scenario of a run; the first broken expectation ends it with status 1.
//
//     node scenarios.js 127.0.0.1:9092 transactions
'use strict'

const assert = require('node:assert/strict')
const { setTimeout: sleep } = require('node:timers/promises')
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, Partitioners, logLevel } = require('kafkajs')
const lz4 = require('lz4js')
const { ZstdCodec } = require('zstd-codec')

const WAIT_MS = 30_000
const [bootstrap, scenario] = process.argv.slice(2)
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING })
const admin = kafka.admin()

// kafkajs brings gzip; the others are plugged in.
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4Frame(encoder.buffer),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})

// lz4js makes frames of linked blocks, which Kafka refuses: these are independent, of 64 KiB.
function lz4Frame(data) {
  const parts = [Buffer.from([0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82])]
  for (let at = 0; at < data.length; at += 65536) {
    const raw = data.subarray(at, at + 65536)
    const room = lz4.makeBuffer(lz4.compressBound(raw.length))
    const size = lz4.compressBlock(raw, room, 0, raw.length, new Uint32Array(65536))
    const length = Buffer.alloc(4)
    length.writeUInt32LE(size || (raw.length | 0x80000000) >>> 0)
    parts.push(length, size ? Buffer.from(room.subarray(0, size)) : raw)
  }
  return Buffer.concat([...parts, Buffer.alloc(4)])
}

// -- producing, consuming, seeking

async function records() {
  const zstd = await new Promise((resolve) => ZstdCodec.run((loaded) => resolve(new loaded.Simple())))
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
  })
  for (const [name, compression] of Object.entries(CompressionTypes)) {
    const topic = await create(`node-codec-${name.toLowerCase()}`, 1)
    const messages = range(0, 300).map((n) => ({
      partition: 0,
      key: n % 3 ? `k${n}` : null,
      value: n % 7 ? `v${n}`.repeat(20) : null,
      timestamp: `${1_000_000 + n}`,
      headers: { n: [`${n}`, 'again'], other: 'x' },
    }))
    await producing({ idempotent: true }, (producer) => producer.send({ topic, messages, compression, acks: -1 }))
    const found = await read(topic)
    assert.equal(found.length, 300)
    found.forEach(({ message }, n) => {
      assert.equal(message.offset, `${n}`)
      assert.equal(text(message.key), messages[n].key)
      assert.equal(text(message.value), messages[n].value)
      assert.equal(message.timestamp, messages[n].timestamp)
      assert.deepEqual(message.headers.n.map(text), messages[n].headers.n)
      assert.equal(text(message.headers.other), 'x')
    })
  }
}

async function times() {
  const topic = await create('node-times', 1)
  const messages = range(0, 1000).map((n) => ({ partition: 0, value: `${n}`, timestamp: `${1_000_000 + 10 * n}` }))
  await producing({}, (producer) => producer.send({ topic, messages }))
  for (const n of [0, 1, 499, 999]) {
    const [place] = await admin.fetchTopicOffsetsByTimestamp(topic, 1_000_000 + 10 * n - 5)
    assert.deepEqual(place, { partition: 0, offset: `${n}` })
    const member = await join(`node-times-${n}`, topic, {}, { topic, ...place })
    await until(() => member.seen.at(-1) === '999')
    await member.leave()
    assert.equal(member.seen[0], `${n}`)
  }
  assert.deepEqual(await admin.fetchTopicOffsets(topic), [{ partition: 0, offset: '1000', high: '1000', low: '0' }])
}

// -- groups

async function groups() {
  const topic = await create('node-groups', 4)
  const one = await join(topic, topic)
  await fill(topic, 0, 200)
  await until(() => one.places.length === 4 && one.seen.length === 200)
  const two = await join(topic, topic)
  await until(() => one.places.length === 2 && two.places.length === 2)
  assert.deepEqual([...one.places, ...two.places].sort(), [0, 1, 2, 3])
  const { groups: [told] } = await admin.describeGroups([topic])
  assert.equal(told.state, 'Stable')
  assert.equal(told.members.length, 2)
  await fill(topic, 200, 400)
  await until(() => one.seen.length + two.seen.length >= 400)
  await two.leave()
  await until(() => one.places.length === 4)
  await fill(topic, 400, 600)
  await until(() => one.seen.length + two.seen.length >= 600)
  await one.leave()
  assert.equal(new Set([...one.seen, ...two.seen]).size, 600)
  assert.equal(one.seen.length + two.seen.length, 600)
  assert.equal(await committed(topic), 600)
}

// -- transactions

async function transactions() {
  const source = await create('node-source', 1)
  const target = await create('node-target', 2)
  await fill(source, 0, 60)
  const settings = { transactionalId: 'node-mover', idempotent: true, maxInFlightRequests: 1 }
  await producing(settings, async (producer) => {
    for (let round = 0, moved = 0; moved < 60; round++) {
      const transaction = await producer.transaction()
      const messages = range(moved, moved + 10).map((n) => ({ partition: n % 2, value: `${n}` }))
      await transaction.send({ topic: target, messages })
      const offsets = { topics: [{ topic: source, partitions: [{ partition: 0, offset: `${moved + 10}` }] }] }
      await transaction.sendOffsets({ consumerGroupId: 'node-mover', ...offsets })
      if (round % 2) {
        await transaction.commit()
        moved += 10
      } else {
        await transaction.abort()
      }
      assert.equal(await committed('node-mover', source), moved)
    }
  })
  assert.equal((await read(target)).length, 60)
  assert.equal((await read(target, { readUncommitted: true })).length, 120)

  const topic = await create('node-fenced', 1)
  await producing({ ...settings, transactionalId: 'node-fenced' }, async (zombie) => {
    const late = await zombie.transaction()
    await late.send({ topic, messages: [{ value: 'zombie' }] })
    await producing({ ...settings, transactionalId: 'node-fenced' }, async (other) => {
      const transaction = await other.transaction()
      await transaction.send({ topic, messages: [{ value: 'new' }] })
      await transaction.commit()
    })
    await assert.rejects(late.commit(), (error) => /PRODUCER_FENCED|INVALID_PRODUCER_EPOCH/.test(error.type))
  })
  assert.deepEqual((await read(topic)).map(({ message }) => text(message.value)), ['new'])
}

// -- admin calls

async function adminCalls() {
  const topic = 'node-admin'
  const configEntries = [{ name: 'retention.ms', value: '1000000' }]
  assert.equal(await admin.createTopics({ topics: [{ topic, numPartitions: 2, configEntries }] }), true)
  assert.equal(await admin.createTopics({ topics: [{ topic }] }), false)
  await until(async () => (await admin.listTopics()).includes(topic))
  await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
  await until(async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 3)
  await fill(topic, 0, 90)

  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const setting = async () => {
    const { resources: [told] } = await admin.describeConfigs({ resources: [resource] })
    return told.configEntries.find((each) => each.configName === 'retention.ms').configValue
  }
  assert.equal(await setting(), '1000000')
  const alter = (value) => admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'retention.ms', value }] }] })
  await alter('2000000')
  await until(async () => (await setting()) === '2000000')
  await assert.rejects(alter('soon'), { type: 'INVALID_CONFIG' })

  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '10' }] })
  const [first] = (await admin.fetchTopicOffsets(topic)).filter((each) => each.partition === 0)
  assert.deepEqual([first.low, first.high], ['10', '30'])
  const cluster = await admin.describeCluster()
  assert.deepEqual([cluster.brokers.length, cluster.controller], [1, cluster.brokers[0].nodeId])

  const member = await join('node-admin', topic)
  await until(() => member.places.length === 3)
  await assert.rejects(admin.deleteGroups(['node-admin']))
  await member.leave()
  // each of these two sleeps for five seconds by itself, at Kafka too
  await admin.setOffsets({ groupId: 'node-admin', topic, partitions: [{ partition: 0, offset: '12' }] })
  await admin.resetOffsets({ groupId: 'node-admin', topic, earliest: true })
  assert.ok((await admin.listGroups()).groups.some((each) => each.groupId === 'node-admin'))
  await admin.deleteGroups(['node-admin'])
  assert.ok(!(await admin.listGroups()).groups.some((each) => each.groupId === 'node-admin'))
  await admin.deleteTopics({ topics: [topic] })
  await until(async () => !(await admin.listTopics()).includes(topic))
}

// -- parts

const text = (bytes) => (bytes === null ? null : bytes.toString())
const range = (from, until) => Array.from({ length: until - from }, (_, n) => from + n)

async function until(holds) {
  for (const end = Date.now() + WAIT_MS; !(await holds()); await sleep(20)) {
    assert.ok(Date.now() < end, `waited in vain until ${holds}`)
  }
}

async function create(topic, numPartitions) {
  // some records are from 1970
  await admin.createTopics({ topics: [{ topic, numPartitions, configEntries: [{ name: 'retention.ms', value: '-1' }] }] })
  await until(async () => (await admin.listTopics()).includes(topic))
  return topic
}

async function producing(settings, work) {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, retry: { retries: 3 }, ...settings })
  await producer.connect()
  try {
    return await work(producer)
  } finally {
    await producer.disconnect()
  }
}

async function fill(topic, from, until) {
  const { topics: [{ partitions }] } = await admin.fetchTopicMetadata({ topics: [topic] })
  const messages = range(from, until).map((n) => ({ partition: n % partitions.length, key: `${n}`, value: `${n}` }))
  await producing({}, (producer) => producer.send({ topic, messages }))
}

// A consumer of a group: what it has, and what it saw.
async function join(groupId, topic, settings = {}, from = undefined) {
  const consumer = kafka.consumer({
    groupId, sessionTimeout: 10_000, heartbeatInterval: 200, maxWaitTimeInMs: 200, retry: { retries: 5 }, ...settings,
  })
  const member = { places: [], seen: [], found: [], leave: () => consumer.disconnect() }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => { member.places = payload.memberAssignment[topic] ?? [] })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    eachMessage: async (each) => {
      member.seen.push(text(each.message.value))
      member.found.push(each)
    },
  })
  if (from) consumer.seek(from)
  return member
}

// Everything between the ends of a topic: a last record tells where that is.
let readers = 0
async function read(topic, settings = {}) {
  const last = `the end, ${++readers}`
  const { topics: [{ partitions }] } = await admin.fetchTopicMetadata({ topics: [topic] })
  await producing({}, (producer) => producer.send({ topic, messages: partitions.map((_, n) => ({ partition: n, value: last })) }))
  const member = await join(`node-reader-${readers}`, topic, settings)
  await until(() => member.seen.filter((each) => each === last).length === partitions.length)
  await member.leave()
  return member.found.filter(({ message }) => !text(message.value)?.startsWith('the end'))
}

async function committed(groupId, topic = undefined) {
  const told = await admin.fetchOffsets({ groupId, ...(topic && { topics: [topic] }) })
  return told.flatMap((each) => each.partitions).reduce((sum, { offset }) => sum + Math.max(0, Number(offset)), 0)
}

async function main() {
  await admin.connect()
  await { records, times, groups, admin: adminCalls, transactions }[scenario]()
  await admin.disconnect()
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
