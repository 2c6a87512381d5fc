// What llama.cpp makes of a GGUF file, for gguf.py: reads {"model", "tokens", "positions", "texts", "out"} from
// standard input; writes to `out` the probabilities of the whole vocabulary after each of the positions (float32)
// and prints {"vocab", "texts": [[ids]], "template", "stops"}.

import fs from "node:fs";
import path from "node:path";
import {createRequire} from "node:module";

const asked = JSON.parse(fs.readFileSync(0, "utf8"));
const require = createRequire(path.join(process.env.SFT_LLAMA_CPP, "package.json"));
const {getLlama, LlamaLogLevel} = await import(require.resolve("node-llama-cpp"));

const llama = await getLlama({build: "never", gpu: false, logLevel: LlamaLogLevel.error, progressLogs: false});
const model = await llama.loadModel({modelPath: asked.model, gpuLayers: 0});
const context = await model.createContext({contextSize: asked.tokens.length + 8, batchSize: asked.tokens.length + 8});
const sequence = context.getSequence();
const wanted = new Set(asked.positions);
const input = asked.tokens.map((token, i) =>
    wanted.has(i) ? [token, {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}}] : token);
const answers = await sequence.controlledEvaluate(input);
const vocab = model.fileInfo.metadata.tokenizer.ggml.tokens.length;
const out = fs.openSync(asked.out, "w");
for (const position of asked.positions) {
    const row = new Float32Array(vocab);
    for (const [token, probability] of answers[position].next.probabilities) row[token] = probability;
    fs.writeSync(out, Buffer.from(row.buffer));
}
fs.closeSync(out);
console.log(JSON.stringify({
    vocab,
    texts: asked.texts.map((text) => model.tokenize(text, false)),
    eos: model.tokens.eos, bos: model.tokens.bos, add_bos: model.tokens.shouldPrependBosToken,
    train_context: model.trainContextSize,
}));
await llama.dispose();
