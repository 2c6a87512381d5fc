#pragma once

#include "common/base/clock.h"
#include "server/store/store.h"
#include "sft/v1/operator_service.pb.h"

namespace sft::server {

// Prices of slots, as operators set them; operator_service.proto says what each call refuses.
// Thread-safe.
class Prices {
 public:
  // An hour of a slot costs at most so much.
  static constexpr int64_t kMostMicros = 1'000'000'000'000;

  Prices(Store& store, Clock& clock) : store_(store), clock_(clock) {}

  absl::StatusOr<v1::ListPricesResponse> List();
  absl::StatusOr<v1::Price> Set(const v1::SetPriceRequest& request, const Actor& actor);
  absl::Status Remove(const v1::RemovePriceRequest& request, const Actor& actor);

 private:
  Store& store_;
  Clock& clock_;
};

}  // namespace sft::server
