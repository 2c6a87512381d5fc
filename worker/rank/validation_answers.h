#pragma once

#include <memory>

#include "common/base/clock.h"
#include "common/spec/job_spec.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"
#include "worker/engine/train/answer_judge.h"
#include "worker/rank/device.h"

namespace sft::rank {

// The judge that training.validation asks for: each rank answers an equal run of the first rows,
// greedily, all of them at once, with the weights where they are. Null, with the reason in the log,
// where the model's weights are cut over the ranks, stay in host memory or are multiplied in FP8:
// then validation has its loss alone. Borrows `clock`. Throws UserError where no row has a
// question.
std::shared_ptr<engine::AnswerJudge> MakeAnswerJudge(const spec::JobSpec& spec,
                                                     const engine::ChatTokenizer& tokenizer,
                                                     std::shared_ptr<const engine::Dataset> rows,
                                                     const Device& device, Clock& clock);

}  // namespace sft::rank
