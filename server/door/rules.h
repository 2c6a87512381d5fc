#pragma once

#include <string>

#include "server/state/access.h"

namespace sft::server {

// Who may call a method.
enum class Caller {
  kUser,     // with the rule's role
  kNode,     // a worker, by its certificate, speaking for its own node
  kEither,   // a user with the rule's role, or a node
  kJoiner,   // who holds a join token
  kAnybody,  // without a token, as the call is to give one; whatever it brings is not looked at
};

// In which project a user needs the role.
enum class Place {
  kAny,      // in any: what is asked for belongs to no project
  kServer,   // none: only an admin has the role
  kNamed,    // of what the request's `name` names: a job, an artifact, a data set
  kProject,  // the request's `project`, or the caller's one project where that is empty
  kOwn,      // the method answers with what the caller's projects have
};

// Whether calls of a method have rows in the audit.
enum class Audit {
  kNone,
  kChange,  // a row for each call, in the transaction of what it changes
};

// What a method needs of its caller: declared where the method is (Methods).
struct Rule {
  std::string method;  // "JobService.GetJob"
  Caller caller = Caller::kUser;
  Role role = Role::kAdmin;
  Place place = Place::kServer;
  Audit audit = Audit::kNone;
  bool waits =
      false;  // one answer that others give: a call of it counts as a stream while it lasts
};

}  // namespace sft::server
