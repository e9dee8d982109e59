//! The functions that both drivers have: their bodies, which `libcuda.rs` and `libhip.rs` give names.

macro_rules! library {
    ($(fn $name:ident($state:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {
        $(#[unsafe(no_mangle)]
        #[allow(unused_mut, unused_unsafe)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Result {
            let call = || match enter(stringify!($name)) {
                // SAFETY: the caller keeps the driver's interface: pointers are valid for what the
                // function of that name reads and writes. The state is locked.
                Ok(mut $state) => unsafe { $body },
                Err(code) => code,
            };
            let result = call();
            note(stringify!($name), result)
        })*
    };
}

/// Defines the functions that both drivers have, by their names in one of them.
macro_rules! shared {
    (init: $init:ident, version: $version:ident, error_name: $error_name:ident,
     error_string: $error_string:ident, device_count: $device_count:ident, device: $device:ident,
     device_name: $device_name:ident, device_attribute: $device_attribute:ident,
     device_memory: $device_memory:ident, synchronize: $synchronize:ident,
     stream_create: $stream_create:ident, stream_destroy: $stream_destroy:ident,
     stream_synchronize: $stream_synchronize:ident,
     stream_is_capturing: $stream_is_capturing:ident, stream_wait_event: $stream_wait_event:ident,
     begin_capture: $begin_capture:ident, end_capture: $end_capture:ident,
     graph_instantiate: $graph_instantiate:ident, graph_launch: $graph_launch:ident,
     executable_destroy: $executable_destroy:ident, graph_destroy: $graph_destroy:ident,
     event_create: $event_create:ident, event_record: $event_record:ident,
     event_synchronize: $event_synchronize:ident, event_elapsed: $event_elapsed:ident,
     event_destroy: $event_destroy:ident, alloc: $alloc:ident, free: $free:ident,
     copy_to_device: $copy_to_device:ident, copy_to_host: $copy_to_host:ident, copy: $copy:ident,
     fill: $fill:ident, module_load: $module_load:ident, module_unload: $module_unload:ident,
     module_function: $module_function:ident, function_attribute: $function_attribute:ident,) => { library! {
        fn $init(state, flags: c_uint) { if flags == 0 { 0 } else { INVALID_VALUE } }
        fn $version(state, to: *mut c_int) { *to = VERSION; 0 }
        fn $error_name(state, code: i32, to: *mut *const c_char) { words(code, to, |row| row.1) }
        fn $error_string(state, code: i32, to: *mut *const c_char) { words(code, to, |row| row.2) }
        fn $device_count(state, to: *mut c_int) { *to = ARCHITECTURES.len() as c_int; 0 }
        fn $device(state, to: *mut c_int, ordinal: c_int) {
            *to = FIRST_DEVICE + ordinal;
            if (ordinal as usize) < ARCHITECTURES.len() { 0 } else { INVALID_DEVICE }
        }
        fn $device_name(state, to: *mut c_char, len: c_int, device: c_int) {
            let name = DEVICE;
            assert!(len as usize > name.count_bytes());
            name.as_ptr().copy_to(to, name.count_bytes() + 1);
            0
        }
        fn $device_attribute(state, to: *mut c_int, attribute: c_int, device: c_int) {
            match $crate::attribute(attribute, (device - FIRST_DEVICE) as usize) {
                Some(value) => {
                    *to = value;
                    0
                }
                None => INVALID_VALUE,
            }
        }
        fn $device_memory(state, to: *mut usize, device: c_int) { *to = MEMORY; 0 }
        fn $synchronize(state) {
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            state.drain_all();
            0
        }
        fn $stream_create(state, to: *mut Handle, flags: c_uint) {
            *to = state.handle() as Handle;
            if flags == 1 { 0 } else { INVALID_VALUE }
        }
        // What is queued is still done.
        fn $stream_destroy(state, stream: Handle) { 0 }
        fn $stream_synchronize(state, stream: Handle) {
            if state.captures(stream) {
                return CAPTURE_UNSUPPORTED;
            }
            state.drain(stream as usize);
            0
        }
        fn $stream_is_capturing(state, stream: Handle, to: *mut c_int) {
            *to = c_int::from(state.captures(stream));
            0
        }
        fn $stream_wait_event(state, stream: Handle, event: Handle, flags: c_uint) {
            let (at, event) = (stream as usize, event as usize);
            if let Some(capture) = &mut state.capturing && capture.events.contains(&event) {
                // The stream is captured from now on.
                capture.streams.insert(at);
                return 0;
            }
            let records = state.events[&event].records.len() as u64;
            if state.captures(stream) && records > 0 {
                return CAPTURE_ISOLATION;
            }
            state.queue(stream, Item::Wait(event, records));
            0
        }
        fn $begin_capture(state, stream: Handle, mode: c_int) {
            if state.capturing.is_some() || stream.is_null() || mode != 1 {
                return CAPTURE_UNSUPPORTED;
            }
            let (origin, thread) = (stream as usize, std::thread::current().id());
            let (streams, events) = ([origin].into(), Default::default());
            state.capturing = Some(Capture { origin, streams, events, thread, items: Vec::new() });
            0
        }
        fn $end_capture(state, stream: Handle, to: *mut Handle) {
            match state.capturing.take() {
                Some(capture) if capture.origin == stream as usize => {
                    let graph = state.handle();
                    state.graphs.insert(graph, capture.items);
                    *to = graph as Handle;
                    0
                }
                _ => CAPTURE_UNSUPPORTED,
            }
        }
        fn $graph_instantiate(state, to: *mut Handle, graph: Handle, flags: u64) {
            let executable = state.handle();
            let items = state.graphs[&(graph as usize)].clone();
            state.graphs.insert(executable, items);
            *to = executable as Handle;
            0
        }
        fn $graph_launch(state, graph: Handle, stream: Handle) {
            for item in state.graphs[&(graph as usize)].clone() {
                state.queue(stream, item);
            }
            0
        }
        fn $executable_destroy(state, graph: Handle) { state.graphs.remove(&(graph as usize)); 0 }
        fn $graph_destroy(state, graph: Handle) { state.graphs.remove(&(graph as usize)); 0 }
        fn $event_create(state, to: *mut Handle, flags: c_uint) {
            let event = state.handle();
            state.events.insert(event, Event::default());
            *to = event as Handle;
            0
        }
        fn $event_record(state, event: Handle, stream: Handle) {
            let event = event as usize;
            if state.captures(stream) {
                state.capturing.as_mut().unwrap().events.insert(event);
                return 0;
            }
            if let Some(capture) = &mut state.capturing {
                capture.events.remove(&event);
            }
            let records = &mut state.events.get_mut(&event).unwrap().records;
            records.push(stream as usize);
            let record = records.len() as u64;
            state.queue(stream, Item::Record(event, record));
            0
        }
        fn $event_synchronize(state, event: Handle) {
            let records = state.events[&(event as usize)].records.len() as u64;
            state.reach(event as usize, records);
            0
        }
        fn $event_elapsed(state, to: *mut f32, start: Handle, end: Handle) {
            let (start, end) = (&state.events[&(start as usize)], &state.events[&(end as usize)]);
            if [start, end].iter().any(|event| event.come < event.records.len() as u64) {
                return NOT_READY;
            }
            *to = (end.time - start.time) as f32 / 1e6;
            0
        }
        // What waits for it goes on doing so: handles are not used twice.
        fn $event_destroy(state, event: Handle) { 0 }
        fn $alloc(state, to: *mut u64, bytes: usize) {
            if bytes > 1 << 40 {
                return OUT_OF_MEMORY;
            }
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            // From 256 bytes on, as a driver's; what is in it is not 0.
            let block = vec![0xA5u8; bytes + 256].leak();
            let address = (block.as_ptr() as u64).next_multiple_of(256);
            state.live.insert(address, bytes);
            *to = address;
            0
        }
        fn $free(state, address: u64) {
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            state.drain_all();
            // The block stays the process's, so that the device's mistakes do not become the host's.
            if state.live.remove(&address).is_some() { 0 } else { INVALID_VALUE }
        }
        fn $copy_to_device(state, to: u64, from: u64, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Copy { to, from, bytes, to_host: false, from_host: true });
            0
        }
        fn $copy_to_host(state, to: u64, from: u64, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Copy { to, from, bytes, to_host: true, from_host: false });
            0
        }
        fn $copy(state, to: u64, from: u64, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Copy { to, from, bytes, to_host: false, from_host: false });
            0
        }
        fn $fill(state, to: u64, byte: u8, bytes: usize, stream: Handle) {
            state.queue(stream, Item::Fill { to, byte, bytes });
            0
        }
        fn $module_load(state, to: *mut Handle, image: *const c_char) {
            if state.forbidden() {
                return CAPTURE_UNSUPPORTED;
            }
            // An image does not end in 0, but its length is in it: here, the last brace.
            let mut bytes = Vec::new();
            while !matches!((bytes.last(), *image.add(bytes.len())), (_, 0) | (Some(b'}'), _)) {
                bytes.push(*image.add(bytes.len()) as u8);
            }
            let text = String::from_utf8(bytes).unwrap();
            let mut parts = text.split(' ');
            match (parts.next(), parts.next(), parts.next()) {
                (Some("FAKE"), Some(architecture), Some(process)) => {
                    let own = process.lines().next() == Some(&std::process::id().to_string());
                    if architecture != ARCHITECTURES[current(&state)] {
                        return NO_BINARY;
                    }
                    if std::env::var_os("FAKE_FOREIGN").is_some() && !own {
                        return INVALID_IMAGE;
                    }
                }
                _ if !LOADS_TEXT => return NO_BINARY,
                _ if text.contains("nonsense") => return INVALID_PTX,
                _ => {}
            }
            let module = state.handle();
            state.modules.insert(module, text);
            *to = module as Handle;
            0
        }
        fn $module_unload(state, module: Handle) {
            let module = module as usize;
            let runs = |item: &Item| matches!(item, Item::Launch(work) if work.module == module);
            if state.queues.values().flatten().any(runs) {
                fault("a kernel is unloaded that is queued");
            }
            state.modules.remove(&module);
            0
        }
        fn $module_function(state, to: *mut Handle, module: Handle, name: *const c_char) {
            let name = CStr::from_ptr(name).to_str().unwrap().to_owned();
            if !state.modules[&(module as usize)].contains(&format!(" {name}(")) {
                return NOT_FOUND;
            }
            let function = state.handle();
            state.functions.insert(function, (module as usize, name, SHARED));
            *to = function as Handle;
            0
        }
        fn $function_attribute(state, to: *mut c_int, attribute: c_int, function: Handle) {
            *to = match attribute {
                0 => 1024,
                1 => 0,
                3 => {
                    let text = &state.modules[&state.functions[&(function as usize)].0];
                    let spills = std::env::var("FAKE_LOCAL").is_ok_and(|part| text.contains(&part));
                    if spills { 8 } else { 0 }
                }
                4 => 12,
                _ => return INVALID_VALUE,
            };
            0
        }
    }};
}
