#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/data/tokenizer.h"
#include "worker/rank/event_log.h"
#include "worker/rank/launch_file.h"

namespace sft::rank {

// `sft-rank prepare`: once per node before its ranks, under a
// memory limit of its own (memory_limit.h). Checks that the model can be used as the job
// says (files whole, family supported, target modules match) and tokenises the data into the node's
// cache, so that no rank waits in a collective while another tokenises. Throws engine errors.
void RunPrepare(Launch launch, EventLog& events, const Clock& clock);

// Tokenizers may have more tokens than the model has embeddings: fine, as long as no row of the
// file `name` has them. Throws UserError that names the row.
void RefuseTokensWithoutEmbedding(const engine::Tokenizer& tokenizer,
                                  const engine::Dataset& dataset, const std::string& name,
                                  int64_t vocab);

}  // namespace sft::rank
