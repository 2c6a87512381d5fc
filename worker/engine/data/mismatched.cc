#include "worker/engine/data/mismatched.h"

#include <algorithm>

namespace sft::engine {
namespace {

// Rows looked at for another prompt: files are mostly shuffled, or have a prompt's answers
// together.
constexpr int64_t kMostTries = 64;

size_t AnswerStart(const Document& document) {
  const auto is_answer = [](uint8_t mark) {
    return (mark & kPredicted) && !(mark & kBesideAnswer);
  };
  return static_cast<size_t>(std::ranges::find_if(document.loss, is_answer) -
                             document.loss.begin());
}

bool SamePrompt(const Document& a, const Document& b) {
  return std::ranges::equal(a.tokens.first(AnswerStart(a)), b.tokens.first(AnswerStart(b)));
}

}  // namespace

Mismatched::Mismatched(std::shared_ptr<const Dataset> dataset, int64_t length)
    : dataset_(std::move(dataset)), length_(length) {
  const int64_t rows = dataset_->size();
  for (int64_t row = 0; row < rows; ++row) {
    int64_t other = (row + rows - 1) % rows;
    for (int64_t i = 0; i < std::min(rows, kMostTries); ++i) {
      if (!SamePrompt(dataset_->Get(row), dataset_->Get(other))) break;
      other = (other + rows - 1) % rows;
    }
    answers_.push_back(static_cast<uint32_t>(other));
  }
}

MicroBatch Mismatched::Of(const MicroBatch& batch) const {
  MicroBatch mixed;
  mixed.rows = batch.rows;
  for (const uint32_t row : batch.rows) {
    const Document own = dataset_->Get(row), other = dataset_->Get(answers_[row]);
    const size_t prompt = AnswerStart(own), answer = AnswerStart(other);
    std::vector<int32_t> tokens(own.tokens.begin(), own.tokens.begin() + prompt);
    std::vector<uint8_t> loss(prompt, 0);
    tokens.insert(tokens.end(), other.tokens.begin() + answer, other.tokens.end());
    loss.insert(loss.end(), other.loss.begin() + answer, other.loss.end());
    // A token of the prompt stays, as the answer's first is predicted from it.
    const auto excess = std::clamp<int64_t>(static_cast<int64_t>(tokens.size()) - length_, 0,
                                            static_cast<int64_t>(prompt) - 1);
    tokens.erase(tokens.begin(), tokens.begin() + excess);
    loss.erase(loss.begin(), loss.begin() + excess);
    const auto most = std::min(tokens.size(), static_cast<size_t>(length_));
    mixed.Append({.tokens = std::span<const int32_t>(tokens).first(most),
                  .loss = std::span<const uint8_t>(loss).first(most)});
    mixed.longest_row = std::max(mixed.longest_row, static_cast<int32_t>(most));
  }
  return mixed;
}

}  // namespace sft::engine
