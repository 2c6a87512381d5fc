#include "server/core/generation.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/plain_text.h"
#include "server/store/generation.h"

namespace sft::server {
namespace {

// What the authority signs.
std::string Signed(int64_t number) { return fmt::format("sft server generation {}", number); }

absl::Status Replaced(int64_t own, int64_t by, const std::string& at) {
  return FailedPrecondition(fmt::format(
      "this server was replaced: its data is of generation {}, and generation {} serves the "
      "fleet{}. "
      "What it has and that one lacks was not handed on. Leave it stopped; to make it the standby "
      "of "
      "the new one, give `sft-server standby` an empty --data-dir. If this one is to serve all the "
      "same, stop the other, then `sft-server takeover --data-dir` with this folder, and start it",
      own, by, at.empty() ? "" : " at " + at));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Generation>> Generation::Load(
    Store& store, std::optional<tls::Identity> authority) {
  store::GenerationRecord record;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(record, store::GetGeneration(db));
    return absl::OkStatus();
  }));
  if (record.replaced_by > 0) {
    return Replaced(record.number, record.replaced_by, record.replaced_at);
  }
  std::unique_ptr<Generation> made(new Generation(store, record.number, std::move(authority)));
  if (made->authority_.has_value()) {
    SFT_ASSIGN_OR_RETURN(made->proof_,
                         tls::SignText(made->authority_->key_pem, Signed(made->number_)));
  }
  return made;
}

absl::Status Generation::Meet(const std::string& node, int64_t number, const std::string& proof) {
  if (number <= number_) return absl::OkStatus();
  if (number > kLastGeneration) {
    return InvalidArgument(fmt::format(
        "node {} says that it has obeyed a server of generation {}, which none can be: stop its "
        "worker, remove the file `generation` of the worker's data folder, and start it again",
        Plain(node, 80), number));
  }
  if (authority_.has_value() &&
      !tls::IsSignedBy(authority_->certificate_pem, Signed(number), proof)) {
    const MutexLock lock(mutex_);
    if (!doubted_.insert(node).second) return absl::OkStatus();  // it tries again and again
    spdlog::warn(
        "node {} says that it has obeyed a server of generation {} and cannot prove it: this one "
        "goes on",
        Plain(node, 80), number);
    return absl::OkStatus();
  }
  SFT_RETURN_IF_ERROR(Retire(number, ""));
  return status();
}

absl::Status Generation::Retire(int64_t number, const std::string& address) {
  if (number <= number_) return absl::OkStatus();
  if (number > kLastGeneration) {
    return InvalidArgument(
        fmt::format("no server is of generation {}: the last is {}", number, kLastGeneration));
  }
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) { return store::SetReplaced(db, number, Plain(address, 200)); }));
  const MutexLock lock(mutex_);
  if (replaced_.ok()) replaced_ = Replaced(number_, number, Plain(address, 200));
  return absl::OkStatus();
}

absl::Status Generation::status() const {
  const MutexLock lock(mutex_);
  return replaced_;
}

}  // namespace sft::server
