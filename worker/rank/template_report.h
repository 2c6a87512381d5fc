#pragma once

#include "common/spec/job_spec.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/rank/event_log.h"

namespace sft::rank {

// Prints the day that the chat template prints, and warns of what the job gives it and it does not
// speak of.
void TellTemplate(const spec::JobSpec& spec, const engine::ChatTokenizer& tokenizer,
                  EventLog& events);

}  // namespace sft::rank
