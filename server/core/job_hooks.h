#pragma once

#include <string>

#include "common/base/status.h"

namespace sft::server {

// What jobs that name an address to be told (notify.webhook) need of the webhooks. Thread-safe.
class JobHooks {
 public:
  virtual ~JobHooks() = default;

  // Why no job may name the address, for people; empty: it may. The first call for an address may
  // take as long as the look-up of its name.
  virtual std::string Problem(const std::string& url) = 0;

  // A webhook that may be made for a job, with its secret, which is kept from now on.
  struct Offer {
    std::string id, secret;
  };
  virtual absl::StatusOr<Offer> Make() = 0;
  // No job took it.
  virtual absl::Status Withdraw(const Offer& offer) = 0;
};

}  // namespace sft::server
