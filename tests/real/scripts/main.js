// SPDX-License-Identifier: GPL-2.0
// Program for the script node.
'use strict';
const crypto = require('crypto');
const zlib = require('zlib');
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');

function hash(text) {
	return crypto.createHash('sha256').update(text).digest('hex').slice(0, 16);
}

function work(seed) {
	const map = new Map(), objects = [];
	let x = seed + 1;
	for (let i = 0; i < 30000; i++) {
		x = Math.imul(x, 48271) % 0x7fffffff;
		objects.push({ id: i, name: `name-${x % 1009}`, values: [x, i, x ^ i] });
		map.set(`key-${x % 4001}`, (map.get(`key-${x % 4001}`) || 0) + i);
	}
	objects.sort((a, b) => a.name < b.name ? -1 : a.name > b.name ? 1 : a.id - b.id);
	const text = JSON.stringify(objects);
	if (JSON.stringify(JSON.parse(text)) !== text) throw new Error('JSON differs');
	const packed = zlib.deflateSync(text);
	if (zlib.inflateSync(packed).toString() !== text) throw new Error('decompressed text differs');
	const words = text.match(/name-\d+/g).map(word => word.replace(/(\d)(\d)/, '$2$1'));
	const floats = new Float64Array(20000);
	for (let round = 0; round < 30; round++) {
		for (let i = 0; i < floats.length; i++) floats[i] = floats[i] * 0.5 + Math.sqrt(i + seed);
	}
	return [hash(text), hash([...map].join()), hash(words.join()), hash(Buffer.from(floats.buffer))].join(' ');
}

if (isMainThread) {
	const done = [0, 1, 2].map(seed => new Promise((resolve, reject) => {
		const worker = new Worker(__filename, { workerData: seed });
		worker.on('message', resolve);
		worker.on('error', reject);
	}));
	const own = work(0);
	Promise.all(done).then(results => {
		if (results[0] !== own) throw new Error(`worker: ${results[0]}, main thread: ${own}`);
		results.forEach((result, seed) => console.log(seed, result));
	});
} else {
	parentPort.postMessage(work(workerData));
}
