#include "worker/node/obeyed_generation.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>

#include "common/base/generation.h"
#include "common/io/file.h"

namespace sft::worker {
namespace {

constexpr int64_t kMaxFile = 4096;

}  // namespace

// The number in decimal, a line break, the bytes of the proof.
absl::StatusOr<std::unique_ptr<ObeyedGeneration>> ObeyedGeneration::Open(
    const std::string& data_dir) {
  std::unique_ptr<ObeyedGeneration> opened(new ObeyedGeneration(data_dir + "/generation"));
  const absl::StatusOr<std::string> text = io::ReadFile(opened->path_, kMaxFile);
  if (absl::IsNotFound(text.status())) return opened;
  SFT_RETURN_IF_ERROR(text.status());
  const auto [end, error] =
      std::from_chars(text->data(), text->data() + text->size(), opened->number_);
  const size_t digits = static_cast<size_t>(end - text->data());
  if (error != std::errc() || digits >= text->size() || (*text)[digits] != '\n' ||
      !IsGeneration(opened->number_)) {
    return DataLoss(
        fmt::format("{} cannot be read, or holds a number that no server can have: remove it; the "
                    "worker then obeys the next server that answers, so see "
                    "that it is the right one",
                    opened->path_));
  }
  opened->proof_ = text->substr(digits + 1);
  return opened;
}

absl::Status ObeyedGeneration::Obey(const v1::Welcome& welcome) {
  // A server of an earlier release says none: it counts as one that was never replaced.
  const int64_t number = std::max(welcome.generation(), kFirstGeneration);
  if (!IsGeneration(number)) {
    return InvalidArgument(fmt::format(
        "that server says that it is of generation {}, which none can be: at most {}; see what it "
        "is before this worker obeys it",
        number, kLastGeneration));
  }
  if (number < number_) {
    return FailedPrecondition(fmt::format(
        "that server was replaced: it is of generation {}, and this worker has obeyed generation "
        "{}. Stop it. If it is the right one all the same: `sft-server takeover --above {} "
        "--data-dir` with its folder while it is stopped; where this worker belongs to another "
        "fleet "
        "now, remove {}",
        number, number_, number_, path_));
  }
  if (number == number_) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(
      io::WriteFileAtomic(path_, fmt::format("{}\n{}", number, welcome.generation_proof()), 0600));
  if (number_ > 0) {
    spdlog::warn("the server is another one, of generation {} after {}: this one is obeyed now",
                 number, number_);
  }
  number_ = number;
  proof_ = welcome.generation_proof();
  return absl::OkStatus();
}

void ObeyedGeneration::Tell(v1::Register& message) const {
  message.set_generation(number_);
  message.set_generation_proof(proof_);
}

}  // namespace sft::worker
