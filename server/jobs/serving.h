#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/fleet/file_relay.h"
#include "server/store/store.h"
#include "sft/v1/job_service.pb.h"
#include "sft/v1/serving_service.pb.h"

namespace sft::server {

// Asks jobs of kind "serve": finds the processes of a running one and passes question and answer
// on. Of the nodes of a job, the one with the fewest questions is asked, and another one in its
// place where it ends, or is away, before the answer is whole: the caller sees one answer. Nothing
// of them is stored. Thread-safe.
class Serving {
 public:
  // Both are borrowed.
  Serving(Store& store, FileRelay& relay) : store_(store), relay_(relay) {}

  // Those that have been placed and have not ended, of these projects or of all, newest first.
  absl::StatusOr<std::vector<v1::ServedModel>> List(
      const std::optional<std::vector<std::string>>& visible);

  using Gone = FileRelay::Gone;
  // Returns false when the reader is gone.
  template <typename Piece>
  using Take = std::function<bool(const Piece& piece)>;
  // As JobService.Generate and the methods of ServingService, whose caller may ask this job. Wait
  // for the node, until `gone` says that the reader has gone.
  absl::Status Ask(const v1::GenerateRequest& request, const Take<v1::GenerateResponse>& take,
                   const Gone& gone = nullptr);
  absl::Status Complete(const v1::CompleteRequest& request, const Take<v1::CompleteResponse>& take,
                        const Gone& gone = nullptr);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::ServedTokenizer> Tokenizer(const v1::GetTokenizerRequest& request);

 private:
  struct Place {
    std::vector<std::string> nodes;
    std::string attempt_uid;
  };
  absl::StatusOr<Place> Find(const std::string& name);
  // Passes a question on, and each line of the answer to `take`, until it returns true: that was
  // the last. `begin` is called before each first line: the answer, as far as there was one, comes
  // again.
  using TakeLine = std::function<absl::StatusOr<bool>(const std::string& line)>;
  using Begin = std::function<void()>;
  absl::Status Lines(const std::string& name, const std::string& question, const Begin& begin,
                     const TakeLine& take, const Gone& gone);
  absl::Status LinesOf(const std::string& node, const std::string& attempt_uid,
                       const std::string& question, const TakeLine& take, const Gone& gone);

  Store& store_;
  FileRelay& relay_;
};

}  // namespace sft::server
