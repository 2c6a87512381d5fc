#pragma once

#include "worker/engine/data/step_plan.h"
#include "worker/engine/nn/batch.h"
#include "worker/engine/nn/head_exchange.h"
#include "worker/engine/nn/key_gather.h"
#include "worker/engine/nn/token_exchange.h"

namespace sft::engine {

// What a rank has of a micro-batch whose tokens are cut over the ranks of a group: as many as any
// other, a multiple of 8; a document of padding without targets is added for that. The documents
// are all of them, in every share. A target stays with the token that predicts it, so the sums over
// the shares are those over the micro-batch; a share may have none.

// Over ranks that exchange tokens for heads in attention, and over nodes of such ranks that gather
// keys and values: `nodes` is of the ranks that have the same place in each node, often of one.
// Borrows both.
DeviceBatch ShareToDevice(const MicroBatch& batch, const HeadExchange& exchange,
                          Communicator& nodes, at::Device device);
// Over ranks that share matrices, and see all tokens there. Borrows `sharers`.
DeviceBatch ShareToDevice(const MicroBatch& batch, const TokenExchange& sharers, at::Device device);

}  // namespace sft::engine
