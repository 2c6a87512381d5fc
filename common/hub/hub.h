#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/hub/http.h"

namespace sft::hub {

inline constexpr char kDefaultEndpoint[] = "https://huggingface.co";

// True when the caller wants no more of it.
using StopCheck = std::function<bool()>;

// A file of a repository at a commit.
struct HubFile {
  std::string path;
  int64_t size = 0;
  std::string blob_id;     // git's SHA-1 of a small file, or of an LFS file's pointer
  std::string lfs_sha256;  // empty: not an LFS file
  std::string xet_hash;    // empty: none; kept for the listing alone

  // The name of its blob in a cache.
  const std::string& etag() const { return lfs_sha256.empty() ? blob_id : lfs_sha256; }
};

// Whether what a hub, or a file that others can write, says of a repository's files can be worked
// with: paths and hashes become names below a cache, and sizes are added up. A path stays in its
// folder, a hash has its digits and nothing else, and all sizes together are less than 1 PiB.
bool AreSound(const std::vector<HubFile>& files);

// A model hub that speaks Hugging Face's protocol. Thread-safe.
//
// Errors of all calls: NOT_FOUND (no such model, revision or file, as far as the token may see),
// PERMISSION_DENIED (gated, disabled, or the token is refused), FAILED_PRECONDITION (the address or
// its certificate can never work), UNAVAILABLE when the patience is over, ABORTED when stopped.
// Each says what to do.
class Hub {
 public:
  struct Options {
    std::string endpoint = kDefaultEndpoint;  // without a slash at its end
    std::string token;                        // empty: none
    // How long answers that may come later (429, 5xx, broken connections) are asked for again.
    Nanos patience = std::chrono::minutes(2);
    // Told before each such wait: why, and how long.
    std::function<void(const std::string&)> on_wait = {};
  };
  // Both are borrowed.
  Hub(Options options, HttpClient& http, Clock& clock)
      : options_(std::move(options)), http_(http), clock_(clock) {}

  // Whose token it is ("" without one): that the hub can be reached, and takes the token.
  absl::StatusOr<std::string> Greet(const StopCheck& stop) const;
  // The commit that a branch, tag or commit stands for now.
  absl::StatusOr<std::string> Resolve(const std::string& id, const std::string& revision,
                                      const StopCheck& stop) const;
  // All files at a commit.
  absl::StatusOr<std::vector<HubFile>> List(const std::string& id, const std::string& commit,
                                            const StopCheck& stop) const;
  // That the token may read the file, without its bytes: what is gated shows here.
  absl::Status Check(const std::string& id, const std::string& commit, const std::string& path,
                     const StopCheck& stop) const;
  // A small file.
  absl::StatusOr<std::string> Read(const std::string& id, const std::string& commit,
                                   const std::string& path, size_t most,
                                   const StopCheck& stop) const;
  // A file's bytes from `offset` on, wherever redirects lead. The status is 200 (all of it,
  // whatever was asked for), 206 or 416.
  absl::StatusOr<HttpResponse> Open(const std::string& id, const std::string& commit,
                                    const std::string& path, int64_t offset,
                                    const StopCheck& stop) const;

  const Options& options() const { return options_; }

 private:
  struct Question;
  // The last answer of a chain of redirects, asked again while that may help.
  absl::StatusOr<HttpResponse> Ask(const Question& question, const StopCheck& stop) const;
  // One try.
  absl::StatusOr<HttpResponse> Once(const Question& question) const;
  // What a refusal means for the job's owner.
  absl::Status Explain(const Question& question, const HttpResponse& response) const;
  absl::Status ExplainMissing(const Question& question) const;
  absl::StatusOr<std::string> ReadAll(const Question& question, size_t most,
                                      const StopCheck& stop) const;

  const Options options_;
  HttpClient& http_;
  Clock& clock_;
};

// Text without what a token or a signature might be in: scheme, host and path of a URL.
std::string WithoutQuery(std::string_view url);

}  // namespace sft::hub
