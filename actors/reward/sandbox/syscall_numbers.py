"""Numbers of the system calls that the sandbox makes or denies, by machine. Pure.

Source: asm/unistd_64.h (x86-64) and asm-generic/unistd.h (aarch64) of Linux. A call that a machine does not
have is missing.
"""

NUMBERS = {
    "x86_64": {
        "_sysctl": 156, "accept": 43, "accept4": 288, "acct": 163, "add_key": 248, "adjtimex": 159,
        "bind": 49, "bpf": 321, "capset": 126, "chmod": 90, "chown": 92, "chroot": 161,
        "clock_adjtime": 305, "clock_settime": 227, "clone": 56, "clone3": 435, "connect": 42,
        "delete_module": 176, "fanotify_init": 300, "fanotify_mark": 301, "fchmod": 91, "fchmodat": 268,
        "fchmodat2": 452, "fchown": 93, "fchownat": 260, "fcntl": 72, "finit_module": 313,
        "fremovexattr": 199, "fsconfig": 431, "fsetxattr": 190, "fsmount": 432, "fsopen": 430,
        "fspick": 433, "futimesat": 261, "init_module": 175, "inotify_add_watch": 254, "inotify_init": 253,
        "inotify_init1": 294, "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425,
        "ioctl": 16, "ioperm": 173, "iopl": 172, "ioprio_set": 251, "kcmp": 312, "kexec_file_load": 320,
        "kexec_load": 246, "keyctl": 250, "kill": 62, "lchown": 94, "listen": 50, "listmount": 458,
        "lookup_dcookie": 212, "lremovexattr": 198, "lsetxattr": 189, "lsm_set_self_attr": 460,
        "memfd_create": 319, "memfd_secret": 447, "migrate_pages": 256, "mknod": 133, "mknodat": 259,
        "modify_ldt": 154, "mount": 165, "mount_setattr": 442, "move_mount": 429, "move_pages": 279,
        "mq_getsetattr": 245, "mq_notify": 244, "mq_open": 240, "mq_timedreceive": 243, "mq_timedsend": 242,
        "mq_unlink": 241, "msgctl": 71, "msgget": 68, "msgrcv": 70, "msgsnd": 69, "name_to_handle_at": 303,
        "nfsservctl": 180, "open_by_handle_at": 304, "open_tree": 428, "perf_event_open": 298,
        "personality": 135, "pidfd_getfd": 438, "pidfd_open": 434, "pidfd_send_signal": 424,
        "pivot_root": 155, "prctl": 157, "prlimit64": 302, "process_madvise": 440, "process_mrelease": 448,
        "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179,
        "quotactl_fd": 443, "reboot": 169, "removexattr": 197, "request_key": 249, "rt_sigqueueinfo": 129,
        "rt_tgsigqueueinfo": 297, "sched_setaffinity": 203, "sched_setattr": 314, "sched_setparam": 142,
        "sched_setscheduler": 144, "seccomp": 317, "semctl": 66, "semget": 64, "semop": 65,
        "semtimedop": 220, "sendmmsg": 307, "sendmsg": 46, "sendto": 44, "setdomainname": 171,
        "setfsgid": 123, "setfsuid": 122, "setgid": 106, "setgroups": 116, "sethostname": 170, "setns": 308,
        "setpriority": 141, "setregid": 114, "setresgid": 119, "setresuid": 117, "setreuid": 113,
        "settimeofday": 164, "setuid": 105, "setxattr": 188, "shmat": 30, "shmctl": 31, "shmdt": 67,
        "shmget": 29, "socket": 41, "socketpair": 53, "statmount": 457, "swapoff": 168, "swapon": 167,
        "syslog": 103, "tgkill": 234, "tkill": 200, "umount2": 166, "unshare": 272, "uselib": 134,
        "userfaultfd": 323, "utime": 132, "utimensat": 280, "utimes": 235, "vhangup": 153, "vmsplice": 278,
    },
    "aarch64": {
        "accept": 202, "accept4": 242, "acct": 89, "add_key": 217, "adjtimex": 171, "bind": 200, "bpf": 280,
        "capset": 91, "chroot": 51, "clock_adjtime": 266, "clock_settime": 112, "clone": 220, "clone3": 435,
        "connect": 203, "delete_module": 106, "fanotify_init": 262, "fanotify_mark": 263, "fchmod": 52,
        "fchmodat": 53, "fchmodat2": 452, "fchown": 55, "fchownat": 54, "fcntl": 25, "finit_module": 273,
        "fremovexattr": 16, "fsconfig": 431, "fsetxattr": 7, "fsmount": 432, "fsopen": 430, "fspick": 433,
        "init_module": 105, "inotify_add_watch": 27, "inotify_init1": 26, "io_uring_enter": 426,
        "io_uring_register": 427, "io_uring_setup": 425, "ioctl": 29, "ioprio_set": 30, "kcmp": 272,
        "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "kill": 129, "listen": 201,
        "listmount": 458, "lookup_dcookie": 18, "lremovexattr": 15, "lsetxattr": 6,
        "lsm_set_self_attr": 460, "memfd_create": 279, "memfd_secret": 447, "migrate_pages": 238,
        "mknodat": 33, "mount": 40, "mount_setattr": 442, "move_mount": 429, "move_pages": 239,
        "mq_getsetattr": 185, "mq_notify": 184, "mq_open": 180, "mq_timedreceive": 183, "mq_timedsend": 182,
        "mq_unlink": 181, "msgctl": 187, "msgget": 186, "msgrcv": 188, "msgsnd": 189,
        "name_to_handle_at": 264, "nfsservctl": 42, "open_by_handle_at": 265, "open_tree": 428,
        "perf_event_open": 241, "personality": 92, "pidfd_getfd": 438, "pidfd_open": 434,
        "pidfd_send_signal": 424, "pivot_root": 41, "prctl": 167, "prlimit64": 261, "process_madvise": 440,
        "process_mrelease": 448, "process_vm_readv": 270, "process_vm_writev": 271, "ptrace": 117,
        "quotactl": 60, "quotactl_fd": 443, "reboot": 142, "removexattr": 14, "request_key": 218,
        "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "sched_setaffinity": 122, "sched_setattr": 274,
        "sched_setparam": 118, "sched_setscheduler": 119, "seccomp": 277, "semctl": 191, "semget": 190,
        "semop": 193, "semtimedop": 192, "sendmmsg": 269, "sendmsg": 211, "sendto": 206,
        "setdomainname": 162, "setfsgid": 152, "setfsuid": 151, "setgid": 144, "setgroups": 159,
        "sethostname": 161, "setns": 268, "setpriority": 140, "setregid": 143, "setresgid": 149,
        "setresuid": 147, "setreuid": 145, "settimeofday": 170, "setuid": 146, "setxattr": 5, "shmat": 196,
        "shmctl": 195, "shmdt": 197, "shmget": 194, "socket": 198, "socketpair": 199, "statmount": 457,
        "swapoff": 225, "swapon": 224, "syslog": 116, "tgkill": 131, "tkill": 130, "umount2": 39,
        "unshare": 97, "userfaultfd": 282, "utimensat": 88, "vhangup": 58, "vmsplice": 75,
    },
}  # fmt: skip
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h."""
NEWEST = 462
"""mseal: the newest call that was looked at, on both."""
