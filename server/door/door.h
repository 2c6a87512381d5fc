#pragma once

#include <functional>

#include "server/door/call_context.h"

namespace sft::server {

struct Method;

// The one door for calls, whatever transport brings them: a call is admitted by its method's rule,
// run, and recorded: the row of what it changed, or a count of what was refused or failed.
// Thread-safe.
class Door {
 public:
  // The gate is borrowed.
  explicit Door(Gate& gate) : gate_(gate) {}

  // One call in the calling thread, from its beginning to its end. What it returns is what the
  // caller gets.
  absl::Status Serve(const Method& method, Exchange& exchange);

  // The parts of Serve, for methods (Methods) and for calls that no thread serves.
  //
  // Before anything of a call is read that anybody may make: RESOURCE_EXHAUSTED where there are too
  // many of them.
  absl::Status AdmitAnybody(CallContext& call);
  // Whether the caller may call the method at all. UNAUTHENTICATED without a principal;
  // PERMISSION_DENIED without the role; RESOURCE_EXHAUSTED for a stream too many. `project`: that
  // the request names, for the text.
  absl::Status AdmitCaller(CallContext& call, bool streams, const std::string& project = "");
  // And whether it may ask this. INVALID_ARGUMENT for an enum's value that nobody knows; NOT_FOUND
  // for what belongs to a project of which the caller is no member, as if it were not there.
  // `named` is the part of the request that names things, mostly all of it.
  absl::Status AdmitRequest(CallContext& call, bool streams,
                            const google::protobuf::Message& request,
                            const google::protobuf::Message& named);
  // Runs a part of a method. INTERNAL where it throws: the transport would end the call without a
  // row.
  static absl::Status Try(const Method& method, const std::function<absl::Status()>& part);
  // A call is over: records it. What it returns is what the caller gets: why the call had to end,
  // where it lost its right on the way.
  absl::Status Ended(CallContext& call, const absl::Status& status);
  // A call that has ended so, or a message of a stream that was refused.
  void Record(CallContext& call, const absl::Status& status);

  Gate& gate() { return gate_; }

 private:
  void TellLarge(const CallContext& call, const google::protobuf::Message& request);

  Gate& gate_;
};

}  // namespace sft::server
