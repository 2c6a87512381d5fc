#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "server/core/access.h"
#include "server/rpc/rules.h"
#include "server/store/store.h"

namespace sft::server {

// Who makes a call and whether it may: the one place that decides it for every rpc, by the table of
// rules.h. A server on loopback without TLS is open: everybody on the machine is the local user,
// who may do everything. Every other server asks for TLS and a token, or a node's certificate,
// before anything else looks at a call. Thread-safe.
class Gate {
 public:
  Gate(Access& access, Store& store, Clock& clock, bool open)
      : access_(access), store_(store), clock_(clock), open_(open) {}

  // By the peer's certificate (PEM, its key proved by TLS) or its "authorization" metadata.
  absl::StatusOr<Principal> Authenticate(const std::string& certificate_pem,
                                         std::string_view authorization) const;
  bool open() const { return open_; }
  Store& store() { return store_; }
  int64_t now_us() const { return UnixMicros(clock_.Wall()); }

  // A call begins (1) or has ended (-1), or somebody dials (0); workers' streams do not count.
  void Count(int change);
  // No call is under way, nor was one a moment ago.
  bool Quiet() const;

  // Streams at once, of which each holds a thread of the server: of all callers, of one of them,
  // and of methods that no rule knows (reflection). The rest of the threads is for plain calls.
  static constexpr int kMaxStreams = 700, kMaxStreamsOfOne = 100, kMaxStreamsWithoutRule = 8;
  // A stream of `who` begins, which EndStream ends. RESOURCE_EXHAUSTED at `limit`, and at the limit
  // of all.
  absl::Status BeginStream(const std::string& who, int limit);
  void EndStream(const std::string& who);

  // Writes the row of a call that has ended, unless a write of its own did.
  void Record(bool refused, const grpc::Status& status);
  // True at most every few seconds for a key: what is refused again and again is told once.
  bool IsNews(const std::string& key);

 private:
  Access& access_;
  Store& store_;
  Clock& clock_;
  const bool open_;
  std::atomic<int> under_way_ = 0;
  std::atomic<MonoTime> last_call_{};
  Mutex mutex_;
  std::map<std::string, MonoTime> told_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, int> streams_of_ SFT_GUARDED_BY(mutex_);  // none at 0
  int streams_ SFT_GUARDED_BY(mutex_) = 0;
};

// Passes the call on to Admit, and writes the audit when it has ended. The gate is borrowed.
std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
PrincipalInterceptors(Gate& gate);
// Refuses calls without a principal before a service sees them, reflection and health among them.
// For the credentials of a server that is not open.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeAuthenticator(Gate& gate);

inline constexpr char kLocalPrincipal[] = "local";

// The first call of every handler: whether the caller may do this with what the request names.
// UNAUTHENTICATED without a principal; PERMISSION_DENIED without the role; NOT_FOUND for what
// belongs to a project of which the caller is no member, as if it were not there;
// RESOURCE_EXHAUSTED for a stream too many.
grpc::Status Admit(const grpc::ServerContextBase& context,
                   const google::protobuf::Message& request);
// Of a stream that the client writes, before its first message; that is admitted as above.
grpc::Status Admit(const grpc::ServerContextBase& context);
// Of a worker's stream, which has no interceptor: that would cost each of its messages twice.
grpc::Status AdmitSession(Gate& gate, const grpc::ServerContextBase& context, Principal& caller);
// Whether an admitted caller may read a blob by its hash: it was uploaded for one of its projects,
// or is needed by a job on its node. NOT_FOUND otherwise.
grpc::Status AdmitBlob(const grpc::ServerContextBase& context, const std::string& sha256);
// Whether who was admitted before still is someone and still has the role: for streams that last.
grpc::Status AdmitStill(const grpc::ServerContextBase& context);

// Of an admitted call.
const Principal& CallerOf(const grpc::ServerContextBase& context);
std::string PrincipalOf(const grpc::ServerContextBase& context);
// The project that the call is for, of rules with Place::kProject, or that has what it names; of a
// node's call empty.
std::string ProjectOf(const grpc::ServerContextBase& context);
// The projects in which the caller has this role or a higher one; absent: all.
std::optional<std::vector<std::string>> ProjectsWith(const Principal& principal, Role least);
// Those that it may see.
std::optional<std::vector<std::string>> VisibleTo(const Principal& principal);

}  // namespace sft::server
