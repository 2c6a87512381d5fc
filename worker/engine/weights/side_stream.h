#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace sft::engine {

// The streams of the device's kind.
inline c10::impl::VirtualGuardImpl StreamsOf(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

// A second stream of a device, for work beside the computation; where the device has none, that
// work is the computation's. Thread-compatible: one thread of the rank uses it and the current
// stream.
class SideStream {
 public:
  explicit SideStream(at::Device device);

  // True if the device has streams, which a CPU has not.
  bool available() const { return stream_.has_value(); }

  // Makes it the current stream for a scope. What runs there starts after all that was enqueued on
  // the stream that was current before.
  class Scope {
   public:
    explicit Scope(SideStream& side);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SideStream& side_;
    std::optional<c10::Stream> main_;
  };

  // The current stream goes on after all that was enqueued here in a Scope.
  void Join();

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> started_, done_;
};

}  // namespace sft::engine
