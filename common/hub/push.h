#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/hub/http.h"
#include "common/hub/hub.h"
#include "common/hub/model_name.h"
#include "common/io/sha256.h"

namespace sft::hub {

// A file to be pushed.
struct PushFile {
  std::string path;  // in the repository
  int64_t size = 0;
  std::string sha256;
};

// Where files are pushed, and as what.
struct PushTarget {
  ModelName name;          // its revision is a branch; empty: main
  bool is_public = false;  // of a repository that does not exist yet
  std::string message;     // of the commit
};

// What a push has made.
struct Pushed {
  std::string commit;
  std::string url;          // of the repository at that branch
  bool is_new = false;      // the repository was made by this push
  bool is_private = false;  // who may see it
  int64_t sent_bytes = 0;   // of large files; what the hub had already is not sent again
};

// Pushes files to a repository of a model hub: makes the repository (private) and the branch where
// they are missing, sends large files to the hub's store, and makes them visible by one commit at
// the end, so that a push that is cut off leaves nothing half done and the next one sends only what
// is missing. Files of the repository that are not pushed stay.
//
// Errors are those of Hub; besides FAILED_PRECONDITION where the hub refuses a file or the branch
// has got another commit meanwhile, and DATA_LOSS where bytes have not the hash they should have.
class HubPush {
 public:
  // `size` bytes of a file from `offset` on.
  using Open = std::function<absl::StatusOr<std::unique_ptr<HttpSource>>(const PushFile& file,
                                                                         int64_t offset)>;
  struct Options {
    Hub::Options hub;
    Open open;
    // Told while bytes are sent: how many of a file have gone. Null: nobody is.
    std::function<void(const PushFile& file, int64_t sent)> on_sent = {};
  };
  // Both are borrowed.
  HubPush(Options options, HttpClient& http, Clock& clock)
      : options_(std::move(options)), http_(http), clock_(clock), hub_(options_.hub, http, clock) {}

  absl::StatusOr<Pushed> Run(const std::vector<PushFile>& files, const PushTarget& target,
                             const StopCheck& stop);

 private:
  struct Answer {
    int status = 0;
    std::string text;
    std::string code, said;  // the hub's own words
  };
  struct Part;

  // What `send` answers to a question about `what`, asked again while that may help.
  absl::StatusOr<HttpResponse> Patiently(const std::string& what, const std::string& url,
                                         const std::function<absl::StatusOr<HttpResponse>()>& send,
                                         Nanos most = Nanos::max()) const;
  // That the hub can be reached, and takes the token.
  absl::Status Greet() const;
  // Sends JSON, or lines of it, to the hub. Any status that will stay.
  absl::StatusOr<Answer> Ask(const std::string& method, const std::string& url,
                             const std::string& what, const std::string& body,
                             const char* type = "application/json") const;
  // An error of an answer that is none of 2xx.
  absl::Status Refused(const std::string& what, const Answer& answer) const;
  // Finds or makes the repository.
  absl::Status FindRepository(const PushTarget& target, Pushed& pushed) const;
  // The commit that the branch has now; makes a branch that is missing.
  absl::StatusOr<std::string> FindBranch() const;
  // Whether each file is a large one, as the hub sees it.
  absl::StatusOr<std::vector<bool>> AskWhichAreLarge(const std::vector<PushFile>& files) const;
  absl::StatusOr<std::string> ReadBeginning(const PushFile& file, int64_t most) const;
  // Sends a large file unless the hub has it.
  absl::Status SendLarge(const PushFile& file, Pushed& pushed) const;
  absl::Status SendParts(const PushFile& file, const std::vector<Part>& parts,
                         const std::string& complete) const;
  // PUT of a part to an address that the hub gave, which adds it to the hash of the whole; the ETag
  // of the answer.
  absl::StatusOr<std::string> Put(const PushFile& file, const Part& part, io::Sha256& whole) const;
  absl::StatusOr<std::string> CommitText(const std::vector<PushFile>& files,
                                         const std::vector<bool>& large, const PushTarget& target,
                                         const std::string& parent) const;
  absl::StatusOr<std::string> Commit(const std::vector<PushFile>& files, const std::string& text,
                                     const std::string& parent) const;
  // That the hub has the files at that commit.
  absl::Status Verify(const std::vector<PushFile>& files, const std::string& commit) const;
  std::string ApiUrl(const std::string& rest) const;

  const Options options_;
  HttpClient& http_;
  Clock& clock_;
  const Hub hub_;
  std::string id_, branch_;
  StopCheck stop_;
};

}  // namespace sft::hub
