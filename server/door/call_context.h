#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/door/exchange.h"
#include "server/door/gate.h"
#include "server/door/rules.h"
#include "server/state/access.h"
#include "server/store/audit.h"

namespace sft::server {

// One call: who makes it, what it was admitted to, and its row of the audit. A method gets it with
// the request, and knows no more of the transport than this. Of the one thread that serves the
// call.
class CallContext {
 public:
  // In the audit, a caller whom nothing names.
  static constexpr char kNobody[] = "nobody";

  // All borrowed.
  CallContext(Gate& gate, const Rule& rule, Exchange& exchange)
      : CallContext(gate, rule, exchange.origin()) {
    exchange_ = &exchange;
  }
  // A call whose messages are somebody else's business: a worker's stream.
  CallContext(Gate& gate, const Rule& rule, const CallOrigin& origin)
      : gate_(gate), rule_(rule), origin_(origin) {}
  // Ends what was begun: a stream is counted no longer.
  ~CallContext();
  CallContext(const CallContext&) = delete;

  const Principal& caller() const { return caller_; }
  const Rule& rule() const { return rule_; }
  // On whose behalf a change is made.
  Actor actor() { return {caller_.Title(), audit()}; }
  // Null: this call has no row, because it changes nothing, as a dry run does not.
  AuditRow* audit() { return audit_.has_value() ? &*audit_ : nullptr; }
  // Of a call that anybody may make: who has proved to be that user.
  void SpeaksFor(const std::string& user);
  // Of one that could have changed something and has not: it has no row.
  void NothingChanged() { audit_.reset(); }
  // What the call turned out to be about, where its request alone does not say it.
  void SetObject(std::string object);

  // The project that the call is for, of rules with Place::kProject, or that has what it names; of
  // a node's call empty.
  const std::string& project() const { return project_; }
  // The projects in which the caller has this role or a higher one; absent: all.
  std::optional<std::vector<std::string>> ProjectsWith(Role least) const;
  // Those that it may see.
  std::optional<std::vector<std::string>> Visible() const { return ProjectsWith(Role::kViewer); }
  // Whether the caller may read a blob by its hash: it was uploaded for one of its projects, or is
  // needed by a job on its node. NOT_FOUND otherwise.
  absl::Status AdmitBlob(const std::string& sha256) const;

  // Of a worker.
  const std::string& incarnation() const { return origin_.incarnation; }

  // Admits the caller to a project as Place::kProject does: for a method some of whose requests are
  // for one.
  absl::Status AdmitProject(const std::string& named);

  // For a call that lasts: whether its caller has gone, or may no longer do what it was admitted
  // to; then the method returns, whatever, and the caller is told why.
  bool Gone();

 private:
  friend class Door;

  // The steps of admission, in this order (admission.cc).
  // Who it is, and whether its kind and its highest role will do. `project`: that the request
  // names.
  absl::Status Identify(const std::string& project = "");
  // So many streams the caller may have.
  absl::Status CountStream();
  // Whether the caller may do this with what the request names.
  absl::Status AdmitRequest(const google::protobuf::Message& request);
  absl::Status AdmitNamed(const std::string& name);
  absl::Status AdmitDataset(const std::string& sha256) const;
  // Whether who was admitted still is someone and still has the role.
  absl::Status AdmitStill();

  AuditRecord Record() const;

  Gate& gate_;
  const Rule& rule_;
  const CallOrigin& origin_;
  Exchange* exchange_ = nullptr;
  Principal caller_;
  std::string project_, named_;  // what AdmitRequest has found, for AdmitStill
  std::string object_;           // what the audit says that it is about
  std::string stream_of_;        // of whom it is counted as a stream; empty: it is not
  std::optional<AuditRow> audit_;
  absl::Status refusal_;         // why a call that was admitted must end
  std::shared_ptr<void> place_;  // of one that anybody may make
};

}  // namespace sft::server
