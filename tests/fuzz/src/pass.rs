// SPDX-License-Identifier: GPL-2.0
//! Passes file descriptors through a socket.

use crate::sys;

/// A control message with one file descriptor.
#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fd: i32,
    pad: i32,
}

/// Calls `number` with a message of one byte and space for one file descriptor.
fn message(control: &mut Control, number: libc::c_long, socket: i32) -> isize {
    let mut byte = 0u8;
    let mut part = libc::iovec { iov_base: std::ptr::addr_of_mut!(byte).cast(), iov_len: 1 };
    // SAFETY: zero is a valid value of all fields.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = std::ptr::addr_of_mut!(*control).cast();
    header.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    sys::call3(number, socket as usize, std::ptr::addr_of_mut!(header) as usize, flags as usize)
}

/// Sends `source` through a pair of sockets; the received descriptor becomes `target`.
pub fn pass(sockets: [i32; 2], source: i32, target: i32) -> isize {
    let mut control =
        Control { len: 20, level: libc::SOL_SOCKET, kind: libc::SCM_RIGHTS, fd: source, pad: 0 };
    let sent = message(&mut control, libc::SYS_sendmsg, sockets[0]);
    if sent < 0 {
        return sent;
    }
    control.fd = -1;
    let got = message(&mut control, libc::SYS_recvmsg, sockets[1]);
    let new = control.fd;
    if got < 0 || new < 0 {
        return got;
    }
    let result =
        sys::call3(libc::SYS_dup3, new as usize, target as usize, libc::O_CLOEXEC as usize);
    sys::call3(libc::SYS_close, new as usize, 0, 0);
    result
}
