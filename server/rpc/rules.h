#pragma once

#include <span>
#include <string_view>

#include "server/state/access.h"

namespace sft::server {

// Who may call an rpc.
enum class Caller {
  kUser,    // with the rule's role
  kNode,    // a worker, by its certificate, speaking for its own node
  kEither,  // a user with the rule's role, or a node
  kJoiner,  // who holds a join token
};

// In which project a user needs the role.
enum class Place {
  kAny,      // in any: what is asked for belongs to no project
  kServer,   // none: only an admin has the role
  kNamed,    // of what the request's `name` names: a job, an artifact, a data set
  kProject,  // the request's `project`, or the caller's one project where that is empty
  kOwn,      // the handler answers with what the caller's projects have
};

// What an rpc needs. `change`: it has a row in the audit.
struct Rule {
  std::string_view method;  // "/sft.v1.JobService/GetJob"
  Caller caller = Caller::kUser;
  Role role = Role::kAdmin;
  Place place = Place::kServer;
  bool change = false;
};

// The table of all rpcs. One that is not in it is refused.
std::span<const Rule> Rules();
// Null: not in the table.
const Rule* FindRule(std::string_view method);

}  // namespace sft::server
